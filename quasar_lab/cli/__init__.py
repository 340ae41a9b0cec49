"""The command line `quasar-lab`: thin commands over the functions of the package."""

from quasar_lab.cli.app import main, run

__all__ = ["main", "run"]
