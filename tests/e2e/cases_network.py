# SPDX-License-Identifier: Apache-2.0
"""A server that is administered from other hosts: by who knows the volume's secret. Hosts are network namespaces."""
import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess

from cases_service import failure
from volume import Skip, check, eventually, need, run

PORT = 4794


def free_port(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.bind((address, 0))
        return one.getsockname()[1]


def copy_secret(site, volume):
    """As an administrator would carry it to another host."""
    secret = os.path.join(site.scratch, f"secret{site.next_number()}")
    shutil.copy(os.path.join(volume.path, "secret"), secret)
    os.chmod(secret, 0o600)
    return secret


def case_network_administration(site):
    """status, stats and set over TCP do what they do on the server's own host."""
    volume = site.volume("64M")
    m = volume.mount()
    check(not os.path.exists(os.path.join(volume.path, "secret")), "no secret without --listen")
    volume.umount(m)
    for family, host, shown in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")):
        try:
            address = f"{shown}:{free_port(family, host)}"
        except OSError as error:
            print(f"     network_administration: not over {shown}: {error}", flush=True)
            continue
        volume.stop()
        volume.serve("--listen", address)
        own = os.path.join(volume.path, "secret")
        check(stat.S_IMODE(os.stat(own).st_mode) == 0o600, "the secret is its owner's")
        secret = copy_secret(site, volume)
        near = json.loads(run(site.termfs, "status", "--json", volume.path))
        far = json.loads(run(site.termfs, "status", "--json", "--secret", secret, address))
        check(far["uuid"] == near["uuid"] and far["sessions"] == [], f"the same volume: {far}")
        check(address in run(site.termfs, "status", "--secret", secret, address), "status names the address")
        run(site.termfs, "set", "--secret", secret, address, "dram-ratio=0.25")
        check(json.loads(run(site.termfs, "status", "--json", volume.path))["dram_ratio"] == 0.25, "set")
        check("region_pages" in run(site.termfs, "stats", "--json", "--count", "1", "--secret", secret, address), "stats")
        m = volume.mount()
        sessions = json.loads(run(site.termfs, "status", "--json", "--secret", secret, address))["sessions"]
        check([(s["from"], s["transport"]) for s in sessions] == [("", "softnic (shared memory)")], f"{sessions}")
        volume.umount(m)
        volume.kill()
        check("Connection refused" in failure(site, 1, "status", "--secret", secret, address), "nobody is there")
        volume.serve()
        check("refused" in failure(site, 1, "status", "--secret", secret, address), "it listens when it is told to")


def case_network_refuses(site):
    volume = site.volume("64M")
    address = f"127.0.0.1:{free_port(socket.AF_INET, '127.0.0.1')}"
    volume.stop()
    volume.serve("--listen", address)
    secret = copy_secret(site, volume)
    for command in (["status", address], ["stats", "--count", "1", address], ["set", address, "dram-ratio=0.5"]):
        with_secret = [command[0], "--secret", secret, *command[1:]]
        check("--secret is missing" in failure(site, 2, *command), f"{command[0]}: no secret")
        os.chmod(secret, 0o640)
        check("chmod 600" in failure(site, 1, *with_secret), f"{command[0]}: others may read the secret")
        os.chmod(secret, 0o600)
        run(site.termfs, *with_secret)
    other = os.path.join(site.scratch, "other")
    with open(other, "w", encoding="ascii") as file:
        file.write("00" * 32 + "\n")
    os.chmod(other, 0o600)
    check("volume's secret" in failure(site, 1, "status", "--secret", other, address), "another secret")
    with open(other, "w", encoding="ascii") as file:
        file.write("listen\n")
    check("holds no secret" in failure(site, 1, "status", "--secret", other, address), "a file that is none")
    for wrong in ("host:", "host:0", "[::1", "host:99999"):
        failure(site, 2, "serve", volume.path, "--listen", wrong)
    mountpoint = os.path.join(site.scratch, "m")
    os.mkdir(mountpoint)
    check("on their own host" in failure(site, 1, "mount", address, mountpoint), "no mount over a network yet")
    second = site.volume("64M")
    second.stop()
    check("Address already in use" in failure(site, 1, "serve", second.path, "--listen", address), "a port in use")
    second.serve()


def new_host(site):
    """A network namespace, as a command that runs others in it. It lasts as long as the process that has it."""
    holder = site.start("unshare", "--net", "sh", "-c", "echo here; exec sleep 3600")
    if holder.stdout.readline() != "here\n":
        raise Skip("no network namespaces")
    return ("nsenter", "--target", str(holder.pid), "--net")


@contextlib.contextmanager
def two_hosts(site):
    """Two network namespaces, joined; (server's, client's, server's address)."""
    need("ip")
    server, client = new_host(site), new_host(site)
    run(*server, "ip", "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", client[2])
    for host, address in ((server, "10.234.0.1/24"), (client, "10.234.0.2/24")):
        run(*host, "ip", "address", "add", address, "dev", "veth0")
        run(*host, "ip", "link", "set", "veth0", "up")
    yield server, client, "10.234.0.1"
    for volume in site.volumes:
        if volume.server is not None:
            volume.stop()


def case_network_two_hosts(site):
    """Across two network stacks; and when the link is cut a command fails, in a bounded time, and works again."""
    volume = site.volume("64M")
    volume.stop()
    with two_hosts(site) as (server, client, address):
        run(*server, site.termfs, "serve", volume.path, "--listen", address)
        volume.server = site.find_process("serve", volume.path)
        secret = copy_secret(site, volume)
        ask = ("status", "--secret", secret, f"{address}:{PORT}")
        there = (*client, site.termfs, *ask)
        check("health     ok" in run(*there), "from the other host")
        failure(site, 1, *ask)  # from this one there is no way
        run(*client, "ip", "link", "set", "veth0", "down")
        run(*there, code=1, seconds=100)
        run(*client, "ip", "link", "set", "veth0", "up")
        eventually(lambda: subprocess.run(there, capture_output=True, check=False).returncode == 0, "it is back")
