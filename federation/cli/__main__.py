"""`python -m federation.cli` is `moonmesh`."""

from federation.cli.main import main

if __name__ == "__main__":
    main()
