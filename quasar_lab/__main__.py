"""`python -m quasar_lab` is the command `quasar-lab`."""

from quasar_lab.cli import main

if __name__ == "__main__":
    main()
