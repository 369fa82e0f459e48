# SPDX-License-Identifier: Apache-2.0
"""What is run in virtual machines. A scenario's functions are in the shell files beside this one, which every guest has
in /scenarios: `run_NAME` for a Host(NAME)."""
from typing import NamedTuple, Tuple


class Host(NamedTuple):
    """One guest of a scenario."""

    run: str  # the function, without run_
    module: str = "rxe-patched"  # the RNIC driver that load_driver loads: a key of kernel.DRIVERS
    memory: int = 640  # MiB
    cpus: int = 1  # with two, which show races within the kernel, the scenario is played alone


class Scenario(NamedTuple):
    name: str
    seconds: int  # after which it is taken to hang: some ten times what it takes
    hosts: Tuple[Host, ...]  # one, or two that a network joins

    def is_alone(self):
        return any(host.cpus > 1 for host in self.hosts)


# In the order in which they begin.
SCENARIOS = (
    Scenario("driver", 720, (Host("driver", memory=384, cpus=2),)),
    Scenario("serve", 900, (Host("serve", cpus=2),)),
    Scenario("hosts_mount", 1200, (Host("hosts_mount_a"), Host("hosts_mount_b"))),
    Scenario("serve_stock", 900, (Host("serve_stock", module="rxe-stock"),)),
    Scenario("hosts", 900, (Host("hosts_a"), Host("hosts_b"))),
    Scenario("hosts_stock", 900, (Host("hosts_stock_a", module="rxe-stock"), Host("hosts_stock_b", module="rxe-stock"))),
    Scenario("rnics", 300, (Host("rnics"),)),
    Scenario("iwarp", 300, (Host("iwarp", module="siw-stock"),)),
    Scenario("stock", 120, (Host("stock", module="rxe-stock"),)),
    Scenario("version", 300, (Host("version", module="rxe-of-another-version"),)),
    Scenario("mlx5", 300, (Host("mlx5", module="mlx5-patched"),)),
)
