import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from glm52_tbench2.config.signals import STORE_VARIABLE, Signals, SignalsLost


@pytest.fixture
def served():
    signals, address = Signals.serve("127.0.0.1")
    signals.open()
    return signals, address


def client(address: str) -> Signals:
    host, port = address.rsplit(":", 1)
    return Signals(host, int(port))


def test_a_role_in_another_process_reads_and_publishes(served):
    signals, address = served
    signals.publish("engine/0", "http://127.0.0.1:1")
    code = (
        "from glm52_tbench2.config.signals import Signals\n"
        "s = Signals.from_env()\n"
        "s.publish('driver/ready', s.wait('engine/0', 5))\n"
    )
    env = {**os.environ, STORE_VARIABLE: address}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)
    assert signals.get("driver/ready") == "http://127.0.0.1:1"


def test_the_store_listens_on_the_loopback_alone(served):
    _, address = served
    port = int(address.rsplit(":", 1)[1])
    bound = {
        c.laddr.port: c.laddr.ip.removeprefix("::ffff:")
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    }
    assert bound[port] == "127.0.0.1"
    assert set(bound.values()) == {"127.0.0.1"}


def test_a_key_is_absent_before_it_is_published_and_after_it_is_withdrawn(served):
    signals, address = served
    other = client(address)
    assert other.get("env/0") is None
    signals.publish("env/0", "http://a")
    assert other.get("env/0") == "http://a"
    signals.withdraw("env/0")
    assert other.get("env/0") is None


def test_wait_that_is_never_answered_names_the_key(served):
    signals, _ = served
    with pytest.raises(TimeoutError, match="weights/version"):
        signals.wait("weights/version", 0.2)


def test_a_waiting_thread_does_not_hold_back_another(served):
    _, address = served
    other = client(address)
    got: list[str] = []
    waiter = threading.Thread(target=lambda: got.append(other.wait("a", 30)))
    waiter.start()
    time.sleep(0.1)
    other.publish("a", "1")
    waiter.join(30)
    assert got == ["1"]


def test_a_role_outlived_by_its_store_is_told_so():
    signals, address = Signals.serve("127.0.0.1")
    signals.open()
    other = client(address)
    other.publish("a", "1")
    del signals
    with pytest.raises(SignalsLost, match="gone"):
        other.wait("b", 5)


def test_outside_of_a_supervisor_there_are_no_signals(monkeypatch):
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    with pytest.raises(SignalsLost, match=STORE_VARIABLE):
        Signals.from_env()


def test_importing_signals_does_not_import_torch():
    code = "import sys, glm52_tbench2.config.signals; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
