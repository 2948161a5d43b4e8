"""A real Slurm of virtual nodes on this machine: slurmctld, and a slurmd a node, on the loopback.

Needs root, for a node is a daemon with a host name of its own (a UTS and a mount namespace).
Authentication is off, so it must never listen beyond the loopback.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from glm52_tbench2.launch.ports import is_free

START_S = 60.0

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
# A job that is queued again waits for its old credential to expire.
AuthInfo=cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=5
# Another cluster's job ids would lead to its files.
FirstJobId={first_job}
JobRequeue=1
KillWait=20
OverTimeLimit=0
MinJobAge=3600
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES DefMemPerCPU=200 MaxTime=1-00:00:00 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL DefMemPerCPU=200 MaxTime=60 State=UP PriorityTier=9
"""
_NODE = (
    "NodeName=n{i} NodeHostname=n{i} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=16000 "
    "Gres=gpu:4 State=UNKNOWN"
)


class Cluster:
    """Nodes n1, n2, ... in the partitions main and urgent, which takes main's nodes away."""

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder, self.nodes, self._port = folder, nodes, _free_ports(nodes + 1)
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Returns once every node is idle. Raises RuntimeError with the daemons' last words."""
        for name in ("state", "dev", *(f"spool/n{i}" for i in self._numbers)):
            (self.folder / name).mkdir(parents=True)
        for gpu in range(4):
            (self.folder / "dev" / f"gpu{gpu}").symlink_to("/dev/null")
        gres = f"AutoDetect=off\nName=gpu File={self.folder}/dev/gpu[0-3]\n"
        (self.folder / "gres.conf").write_text(gres)
        names = " ".join(f"n{i}" for i in self._numbers)
        hosts = Path("/etc/hosts").read_text() + f"127.0.0.1 {names}\n"
        (self.folder / "hosts").write_text(hosts)
        nodes = "\n".join(_NODE.format(i=i, port=self._port + i) for i in self._numbers)
        conf = _CONF.format(
            host=os.uname().nodename,
            port=self._port,
            folder=self.folder,
            first_job=int(time.time()) % 60_000_000 + 1,
            nodes=nodes,
        )
        (self.folder / "slurm.conf").write_text(conf)
        subprocess.run(["slurmctld", "-i", "-c", "-f", self.folder / "slurm.conf"], check=True)
        for i in self._numbers:
            self.start_node(i)
        until = time.monotonic() + START_S
        while self.ask("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").count("n") < (
            self.nodes
        ):
            if time.monotonic() > until:
                raise RuntimeError(self._last_words())
            time.sleep(0.1)

    def start_node(self, i: int) -> None:
        """Starts the daemon of node `i`."""
        start = (
            f"hostname n{i} && mount --bind {self.folder}/hosts /etc/hosts && exec slurmd -N n{i}"
        )
        command = [
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            f"{start} -f {self.folder}/slurm.conf",
        ]
        subprocess.run(command, check=True)

    def kill_node(self, i: int) -> None:
        """kill -9 of the daemon of node `i`."""
        os.kill(self._pid(f"slurmd.n{i}.pid"), signal.SIGKILL)

    def stop(self) -> None:
        """Ends every job and daemon."""
        self.ask("scancel", "--quiet", "--user=root")
        until = time.monotonic() + 40
        while self.ask("squeue", "-h", "-t", "running,completing") and time.monotonic() < until:
            time.sleep(0.1)
        pids = [int(p.read_text()) for p in self.folder.glob("*.pid") if p.read_text().strip()]
        for pid in pids:
            _end(pid, signal.SIGTERM)
        until = time.monotonic() + 10
        while any(_runs(pid) for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in pids:
            _end(pid, signal.SIGKILL)

    def ask(self, *command: str) -> str:
        """What a Slurm command prints."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=60)
        return done.stdout

    @property
    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def _last_words(self) -> str:
        told = [self.ask("sinfo", "-N", "-l")]
        told += [f"{log}: {log.read_text()[-2000:]}" for log in self.folder.glob("*.log")]
        return "the cluster did not start:\n" + "\n".join(told)


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nothing listens on."""
    first = 17000
    while not all(is_free("127.0.0.1", first + i) for i in range(count)):
        first += count
    return first


def there() -> bool:
    """Whether Slurm is installed and may be started here."""
    return os.geteuid() == 0 and all(map(shutil.which, ("slurmctld", "slurmd", "sbatch")))


def _end(pid: int, number: int) -> None:
    if _runs(pid):
        os.kill(pid, number)


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
