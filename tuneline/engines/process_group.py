"""Ray Train's torch process group, listening on the node's own address only.

Ray lets torch's rendezvous store listen on every interface; on a laptop that opens a port to the network. Here rank 0 opens the
socket itself, on the address by which Ray knows the node, and gloo is bound to the loopback interface where that is the address.
Imported in the training job only.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.train.torch import TorchConfig
from ray.train.torch.config import _set_torch_distributed_env_vars, _TorchBackend

_listener: socket.socket | None = None


def _listen() -> tuple[str, int]:
    """Rank 0: open the rendezvous socket; its address and port."""
    global _listener
    address = ray.util.get_node_ip_address()
    _listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    return address, _listener.getsockname()[1]


def _join(backend: str, rank: int, world_size: int, address: str, port: int, timeout_s: int) -> None:
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    if ipaddress.ip_address(address).is_loopback:
        loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    timeout = timedelta(seconds=timeout_s)
    listening = {"master_listen_fd": _listener.detach()} if rank == 0 and _listener else {}
    store = dist.TCPStore(address, port, world_size, is_master=rank == 0, timeout=timeout, **listening)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


class _OwnAddressBackend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        address, port = worker_group.execute_single(0, _listen)
        ray.get(
            [
                worker_group.execute_single_async(
                    rank, _join, backend_config.backend, rank, len(worker_group), address, port, backend_config.timeout_s
                )
                for rank in range(len(worker_group))
            ]
        )

    def on_training_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(_set_torch_distributed_env_vars)


@dataclass
class OwnAddressConfig(TorchConfig):
    """A TorchConfig with `backend` gloo or nccl."""

    @property
    def backend_cls(self) -> type[_OwnAddressBackend]:
        return _OwnAddressBackend
