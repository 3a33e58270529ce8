"""Two ranks stop in the middle of an epoch, and three continue with exactly the rows that are left.

torchrun --nproc-per-node=2 ranks.py 5
torchrun --nproc-per-node=3 ranks.py
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from parquetry import ParquetIterable

dist.init_process_group("gloo")
rows = ParquetIterable("sweeps").shuffle(1_000, seed=7).shard().batch(20)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
checkpoint = Path("ranks.pt")
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    rows.load_state_dict(state["rows"])  # of rank 0, for any number of ranks

ids = []
for step, batch in enumerate(rows, 1):
    loss = torch.nn.functional.cross_entropy(model(batch["points"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ids += batch["id"].tolist()
    if sys.argv[1:] == [str(step)]:
        break
if dist.get_rank() == 0:
    parts = {"model": model, "optimizer": optimizer, "rows": rows}
    torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint)
everywhere = [None] * dist.get_world_size()
dist.all_gather_object(everywhere, ids)
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} ranks took {step} steps and saw {len(set().union(*everywhere))} rows")
dist.destroy_process_group()
