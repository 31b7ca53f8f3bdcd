"""How programs of several gloo processes on one machine find each other, and end."""

import os
import socket
import time

import torch.distributed as dist


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def choose_port():
    """For the processes that this one spawns; a port that is given stays."""
    os.environ.setdefault("MASTER_PORT", str(free_port()))


def leave():
    time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
    dist.destroy_process_group()
