"""What burns in place of a fault: together, as much as the fault."""

from __future__ import annotations

import pytest

from chaos.execution import burners
from chaos.record import Pass


def fault(cores: float, *extra: tuple[float, int], before: float = 0.2) -> Pass:
    return Pass("fault", cores=cores, cores_before=before, extra=list(extra))


def together(burnt: list[tuple[float, int]]) -> float:
    return sum(cores for cores, _ in burnt)


def test_each_process_is_replaced_at_its_nice_value_and_small_ones_are_shared_out() -> None:
    # 0.05 of the 0.65 cores more are of processes too small for a burner of their own.
    burnt = burners([fault(0.85, (0.4, 5), (0.2, 10))])
    assert [nice for _, nice in burnt] == [5, 10]
    assert together(burnt) == pytest.approx(0.65, abs=0.002)
    assert burnt[0][0] == pytest.approx(2 * burnt[1][0], abs=0.002)


def test_what_burners_lacked_is_added_in_the_next_round() -> None:
    first = fault(1.0, (0.8, 0))
    starved = Pass("burner", cores=0.9, burnt=burners([first]))
    assert together(starved.burnt) == pytest.approx(0.8)
    assert together(burners([first, starved])) == pytest.approx(0.9)


def test_what_they_had_too_much_is_taken_off_and_never_below_nothing() -> None:
    first = fault(0.3, (0.1, 0))
    greedy = Pass("burner", cores=0.9, burnt=burners([first]))
    assert together(burners([first, greedy])) == 0


def test_the_mean_of_all_rounds_counts() -> None:
    passes = [fault(1.0, (0.8, 0))]
    passes.append(Pass("burner", cores=1.0, burnt=burners(passes)))
    passes.append(fault(1.4, (1.2, 0)))
    assert together(burners(passes)) == pytest.approx(1.0)


def test_a_fault_that_uses_no_cpu_is_replaced_by_nothing() -> None:
    assert burners([fault(0.2)]) == []
