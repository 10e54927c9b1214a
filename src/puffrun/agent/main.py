"""What runs inside the torchrun agent process: torch's own agent, with three things changed.

1. Each rank gets the standard streams that the launcher made for it, not files that are re-read.
2. A rank's start and its exact exit status are reported to the launcher at once, as events.
3. The agent never signals a rank: evidence is taken first, and ending the run is the launcher's.

Everything else (rendezvous, the store, RANK and its kin) is `torch.distributed.run` itself. The
agent is started early, so that its import of torch overlaps with the artifact phase, and waits
for `go` before any rank exists.
"""

import gc
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from puffrun.agent.handler import Executor, Spawner, ignore_signal, patch_torch
from puffrun.agent.link import AgentRequest, Link
from puffrun.agent.preload_refusal import find_refusal
from puffrun.agent.zygote import RefusedError, fork_zygote
from puffrun.library.agreement.gone_ranks import Announcer
from puffrun.rank.birth import Birth

PORT_ATTEMPTS = 5


def _find_unignored_signals() -> list[str]:
    """Name the signals whose handler torch may set: an inherited ignore (nohup) reaches the ranks.

    SIGTERM is always among them, because torch takes no empty list.
    """
    usual = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    kept = [signum.name for signum in usual if signal.getsignal(signum) is not signal.SIG_IGN]
    return [signal.SIGTERM.name, *kept]


def torchrun_options(request: AgentRequest, port: int) -> list[str]:
    """Spell the options for torch.distributed.run; nothing is left to PET_* or to a default."""
    return [
        f"--nnodes={request.nodes}",
        f"--nproc-per-node={request.ranks_per_node}",
        f"--node-rank={request.node_rank}",
        f"--rdzv-id={request.run_id}",
        "--rdzv-backend=static",
        f"--master-addr={request.master_addr}",
        f"--master-port={port}",
        f"--local-addr={request.master_addr}",
        "--max-restarts=0",
        "--monitor-interval=1",
        f"--signals-to-handle={','.join(_find_unignored_signals())}",
        f"--log-dir={request.log_dir}",
        "--no-python",
    ]


def find_free_port(address: str) -> int:
    """Ask the kernel for a port that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def run_agent(request: AgentRequest) -> None:
    """Run torch's agent until every rank has exited or one has failed."""
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = request.master_port or find_free_port(request.master_addr)
        options = torchrun_options(request, port)
        config, _, _ = config_from_args(
            parse_args([*options, "program"])  # type: ignore[no-untyped-call]
        )
        try:
            elastic_launch(config, request.argv[0])(*request.argv[1:])
        except ChildFailedError:
            return  # the launcher knows each rank's status already, and better
        except DistNetworkError as error:  # somebody took the port since: only before any rank
            if "EADDRINUSE" not in str(error) or attempt == PORT_ATTEMPTS:
                raise
        else:
            return


@contextmanager
def own_warnings() -> Iterator[None]:
    """Let no PYTHONWARNINGS=error end the agent.

    Forked ranks have the user's filters again, and those that torch adds when it is imported.
    """
    if not any(each[0] == "error" for each in warnings.filters):
        yield
        return
    warnings.simplefilter("default")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        warnings.filters.remove(ours)  # type: ignore[attr-defined]  # a list, typed as a Sequence


def serve(link: Link) -> Birth | None:
    """Serve one launch; a `Birth` is returned in the ranks that were forked from here."""
    request = AgentRequest(**link.receive())
    gc.disable()  # a seventh of the time is collections that find nothing
    with own_warnings():
        import torch.distributed.run  # noqa: F401  # the expensive part, before `go`

    gc.freeze()  # it is all there to stay; a collection in a forked rank would copy every page
    gc.enable()
    refusal = find_refusal(request.argv) if request.preload else None
    spawner: Spawner = Executor(link, request)
    ready: dict[str, object] = {"ready": os.getpid()}
    if request.preload and refusal is None:
        try:
            forked = fork_zygote(link, request.stdio)
        except RefusedError as error:
            refusal = str(error)
        else:
            if isinstance(forked, Birth):
                return forked
            spawner = forked
            ready["zygote"] = forked.pid
    if refusal is not None:
        ready["not_preloaded"] = refusal
    announcer = Announcer()
    link.on_exit = announcer.tell  # the ranks that wait at a meeting hear of it too
    patch_torch(spawner, request.attempt, announcer)
    link.say(ready)
    os.environ.update(link.receive()["go"]["env"])
    with own_warnings():
        run_agent(request)
    return None


def main() -> int | Birth:
    """Serve one launch on the link that was inherited as descriptor argv[1]."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, ignore_signal)
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    try:
        return serve(link) or 0
    except EOFError:
        return 1
    except Exception as error:  # noqa: BLE001  # this is the agent's main: the launcher gets it all
        traceback.print_exc()
        link.say({"crashed": f"{type(error).__name__}: {error}"})
        return 1
