# SPDX-License-Identifier: Apache-2.0
"""GlusterFS and MooseFS on this host, for benchmarks/run: one server and one mount of each, with their defaults.

Nothing outside the scratch directory is read or written, and no daemon of the system's is asked: GlusterFS runs from
volume files that hold what its own `volume create` puts there, MooseFS from configuration files that change places only, in a
network of its own.
"""
import os
import pwd
import shutil
import socket
import subprocess

MOOSE = "10.0.0.1"

GLUSTER_BRICK = [
    ("storage/posix", ["directory {brick}"]),
    ("features/locks", []),
    ("performance/io-threads", []),
    ("debug/io-stats", []),
    ("protocol/server", [
        "transport-type socket", "transport.socket.bind-address {address}", "transport.socket.listen-port {port}",
        "auth.addr.debug-io-stats.allow *"
    ]),
]
GLUSTER_CLIENT = [
    ("protocol/client", [
        "transport-type socket", "remote-host {address}", "remote-port {port}", "remote-subvolume debug-io-stats"
    ]),
    ("cluster/distribute", []),
    ("performance/write-behind", []),
    ("performance/open-behind", []),
    ("performance/quick-read", []),
    ("performance/md-cache", []),
    ("performance/io-threads", []),
    ("debug/io-stats", []),
]


def free_port():
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(port, before=()):
    return subprocess.run([*before, "ss", "-Hltn", f"sport = :{port}"], check=True, capture_output=True).stdout != b""


def volume_file(path, translators, **values):
    """A stack of translators, each upon the one before."""
    below = None
    with open(path, "w", encoding="utf-8") as out:
        for kind, options in translators:
            name = kind.replace("/", "-")
            out.write(f"volume {name}\n  type {kind}\n")
            out.writelines(f"  option {option.format(**values)}\n" for option in options)
            out.write(f"  subvolumes {below}\n" if below else "")
            out.write("end-volume\n\n")
            below = name
    return path


GLUSTER_TLS = ["transport.socket.ssl-enabled on", "transport.socket.ssl-own-cert {cert}",
               "transport.socket.ssl-private-key {key}", "transport.socket.ssl-ca-list {cert}"]


def certificate(home):
    """A key and a certificate that it signed itself."""
    key, cert = (os.path.join(home, name) for name in ("key.pem", "cert.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=benchmark",
                    "-keyout", key, "-out", cert], check=True, capture_output=True)
    return {"key": key, "cert": cert}


def gluster(mounts, wait_for, address="127.0.0.1", server_host=(), client_host=(), tls=False):
    """Mounts a GlusterFS volume of one brick; its mount point, or None where it is not installed. What stands before the
    commands makes them run on other hosts than this one."""
    if not (shutil.which("glusterfsd") and shutil.which("glusterfs")):
        return None
    home = os.path.join(mounts.scratch, "gluster-tls" if tls else "gluster")
    brick = os.path.join(home, "brick")
    os.makedirs(brick)
    values = {"brick": brick, "address": address, "port": free_port(), **(certificate(home) if tls else {})}

    def stack(translators):
        return [(kind, options + (GLUSTER_TLS if tls and kind.startswith("protocol/") else [])
                 + (["auth.login.debug-io-stats.ssl-allow *"] if tls and kind == "protocol/server" else []))
                for kind, options in translators]

    server = mounts.processes.start([
        *server_host, "glusterfsd", "-N", "-f", volume_file(f"{home}/brick.vol", stack(GLUSTER_BRICK), **values), "-l",
        f"{home}/brick.log"
    ], mounts.log)
    wait_for(lambda: listening(values["port"], server_host), "glusterfsd", server)
    return mounts.mount("gluster-tls-mount" if tls else "gluster-mount", *client_host, "glusterfs", "-N", "-f",
                        volume_file(f"{home}/client.vol", stack(GLUSTER_CLIENT), **values), "-l", f"{home}/client.log",
                        "MOUNTPOINT")


def private_network(mounts, wait_for):
    """What to put before a command so that it runs in a network of its own, in which MOOSE is the only address."""
    holder = mounts.processes.start(["unshare", "--net", "sleep", "infinity"], mounts.log)
    own = os.readlink("/proc/self/ns/net")
    wait_for(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "unshare", holder)
    inside = ["nsenter", "--target", str(holder.pid), "--net"]
    for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", f"{MOOSE}/32", "dev", "lo"]):
        subprocess.run(inside + command, check=True, stdout=mounts.log, stderr=mounts.log)
    return inside


def moose(mounts, wait_for):
    """Mounts a MooseFS of one chunk server; its mount point, or None where it is not installed. Its chunk server refuses
    a master on a loopback address."""
    if not all(map(shutil.which, ("mfsmaster", "mfschunkserver", "mfsmount", "ip", "ss"))):
        return None
    home = os.path.join(mounts.scratch, "moose")
    user = pwd.getpwnam("mfs")
    for part in ("", "master", "chunks", "disk"):
        os.makedirs(os.path.join(home, part), exist_ok=True)
        os.chown(os.path.join(home, part), user.pw_uid, user.pw_gid)
    os.chmod(mounts.scratch, 0o755)  # its servers run as their own user

    def written(name, *lines):
        path = os.path.join(home, name)
        with open(path, "w", encoding="utf-8") as out:
            out.writelines("\n".join(lines))
        os.chown(path, user.pw_uid, user.pw_gid)
        return path

    exports = written("exports", f"{MOOSE} / rw,alldirs,admin,maproot=0:0", "")
    topology = written("topology")
    disks = written("disks", os.path.join(home, "disk"), "")
    written("master/metadata.mfs", "MFSM NEW")
    master = written("master.cfg", f"DATA_PATH = {home}/master", f"EXPORTS_FILENAME = {exports}",
                     f"TOPOLOGY_FILENAME = {topology}", "NICE_LEVEL = 0", "DISABLE_OOM_KILLER = 0", "")
    chunks = written("chunks.cfg", f"DATA_PATH = {home}/chunks", f"HDD_CONF_FILENAME = {disks}", f"MASTER_HOST = {MOOSE}",
                     "HDD_LEAVE_SPACE_DEFAULT = 64MiB", "NICE_LEVEL = 0", "DISABLE_OOM_KILLER = 0", "")
    inside = private_network(mounts, wait_for)


    server = mounts.processes.start([*inside, "mfsmaster", "-f", "-c", master, "start"], mounts.log)
    wait_for(lambda: listening(9421, inside), "mfsmaster", server)
    server = mounts.processes.start([*inside, "mfschunkserver", "-f", "-c", chunks, "start"], mounts.log)
    path = mounts.mount("moose-mount", *inside, "mfsmount", "-f", "-H", MOOSE, "MOUNTPOINT")
    # Files can be written once the master knows the chunk server, which takes a few seconds.
    wait_for(lambda: os.statvfs(path).f_bavail > 0, "mfschunkserver", server)
    return path
