"""What messages cost in pages that nobody has touched."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from federation.allocator import HEAPS_MAX, SERVING_KEPT_BYTES

PAGES_OF_A_MIB = 256

PROGRAM = """
import resource, sys
from federation.allocator import keep_memory_of_messages

if sys.argv[1] == "kept":
    keep_memory_of_messages(int(sys.argv[2]))
payload = memoryview(bytearray(1 << 20))
faults = 0
for turn in range(60):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):  # two messages made, two on their way
        messages = [b"".join((b"head", payload)) for _ in range(4)]
        del messages
    if turn >= 10:
        faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults / (50 * 16))
"""


def _faults_a_message(how: str) -> float:
    command = [sys.executable, "-c", PROGRAM, how, str(SERVING_KEPT_BYTES)]
    return float(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_messages_come_out_of_memory_that_is_kept() -> None:
    assert _faults_a_message("kept") < 0.02 * PAGES_OF_A_MIB
    assert _faults_a_message("as it comes") > 0.2 * PAGES_OF_A_MIB, "nothing is gained by it"


PEAK = """
import os, psutil
from federation.allocator import give_back_free_memory, keep_memory_of_messages

keep_memory_of_messages()
blocks = [b"x" * (1 << 18) for _ in range(256)]
peak = psutil.Process().memory_info().rss
del blocks[:-1]  # the last one is at the end: glibc gives nothing back
before = psutil.Process().memory_info().rss
give_back_free_memory()
print(peak - before, before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_what_a_peak_took_is_given_back_when_told() -> None:
    ran = subprocess.run([sys.executable, "-c", PEAK], check=True, capture_output=True, timeout=60)
    kept, given_back = map(int, ran.stdout.split())
    assert kept < 16 << 20, "nothing has to be told"
    assert given_back > 48 << 20


HEAPS = """
import ctypes, sys, tempfile, threading
from federation.allocator import have_few_heaps

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fdopen.restype = ctypes.c_void_p
if sys.argv[1] == "few":
    have_few_heaps()
all_there = threading.Barrier(12)

def holds():
    libc.malloc(1 << 16)
    all_there.wait()

threads = [threading.Thread(target=holds) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.TemporaryFile() as told:
    stream = ctypes.c_void_p(libc.fdopen(told.fileno(), b"w"))
    libc.malloc_info(0, stream)
    libc.fflush(stream)
    told.seek(0)
    print(told.read().count(b"<heap nr="))
"""


def _heaps(how: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", HEAPS, how], check=True, capture_output=True, timeout=60
    )
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc alone")
def test_many_threads_share_few_heaps() -> None:
    assert _heaps("few") <= HEAPS_MAX
    assert _heaps("as it comes") > HEAPS_MAX, "nothing is gained by it"
