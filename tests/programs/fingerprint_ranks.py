"""A model that ranks hold in parts, and what each says of it: `fingerprint_ranks.py RANK RANKS FOLDER HOW`.

HOW: fsdp2, hsdp (parts with copies), megatron (cut by hand), drifted (copies that differ), stages (each rank has other tensors)."""

import sys

import torch


def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 10, bias=False))
    net[1].register_buffer("scratch", torch.randn(3), persistent=False)
    return net


def main(rank, world, folder, how):
    import lastbit.torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method="file://" + folder + "/door", rank=rank, world_size=world)
    net = model()
    if how == "fsdp2":
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
        source = net
    elif how == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2))
        source = {n: distribute_tensor(v, mesh, [Replicate(), Shard(0)]) if v.ndim else v for n, v in net.state_dict().items()}
    elif how == "megatron":  # cut by hand, by columns
        width = 24 // world
        source = dict(net.state_dict())
        w = source["0.weight"] = source["0.weight"][:, rank * width : (rank + 1) * width].clone()
        lastbit.torch.shard(w, {1: [(rank * width, (rank + 1) * width)]}, {1: 24}, axis="tp", size=world)
    elif how == "drifted":
        source = net.state_dict()
        source["2.weight"][1, 2] += rank
    elif how == "stages":
        source = {n: v for i, (n, v) in enumerate(net.state_dict().items()) if i % world == rank}
    table = lastbit.torch.fingerprint(source, rounded=True)
    table.save("%s/rank-%d.json" % (folder, rank))
    if how == "stages":
        try:
            table.all_reduce()
        except lastbit.Error as error:
            open("%s/refused-%d" % (folder, rank), "w").write(str(error))
    else:
        table.all_reduce().save("%s/all-%d.json" % (folder, rank))
    if how == "fsdp2":
        dcp.save(net.state_dict(), checkpoint_id=folder + "/saved")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
