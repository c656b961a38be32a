"""Lists the programs that benchmarks of bursts run, and the packages that all benchmarks need.

usage: python benchmarks/list_programs.py [--packages | --lacking]
"""

from __future__ import annotations

import argparse
import sys

from programs.catalogue import CATALOGUE, lacking_packages, packages
from reference.programs import lacking_packages as lacking_for_references
from reference.programs import packages as packages_for_references
from targets.servers import lacking_packages as lacking_for_servers
from targets.servers import packages as packages_for_servers


def main() -> int:
    """Print a table, or package names for a shell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--packages", action="store_true", help="print all packages only")
    only.add_argument("--lacking", action="store_true", help="print those that lack only")
    args = parser.parse_args()
    if args.packages or args.lacking:
        lists = (
            (packages(), packages_for_references(), packages_for_servers())
            if args.packages
            else (lacking_packages(), lacking_for_references(), lacking_for_servers())
        )
        print(*sorted(set().union(*lists)), sep="\n")
        return 0
    for workload in CATALOGUE:
        state = workload.lacks() or "installed"
        print(f"{workload.name:12} {workload.code:18} {workload.what:62} {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
