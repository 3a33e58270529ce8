"""Trains straight from S3, with a local server standing in for it here.

With the real S3, omit `endpoint`. Credentials come from the environment, as for any other program.
"""

import os

import torch
from moto.server import ThreadedMotoServer
from pyarrow.fs import S3FileSystem
from tiles import write_tiles
from torch.utils.data import DataLoader

from parquetry import ParquetIterable

os.environ |= {"AWS_ACCESS_KEY_ID": "example", "AWS_SECRET_ACCESS_KEY": "example", "AWS_EC2_METADATA_DISABLED": "true"}
server = ThreadedMotoServer(port=0)
server.start()
host, port = server.get_host_and_port()
endpoint = f"endpoint_override=http%3A%2F%2F{host}%3A{port}"

S3FileSystem(endpoint_override=f"http://{host}:{port}", allow_bucket_creation=True).create_dir("lake")
url = write_tiles(f"s3://lake/tiles?{endpoint}")

loader = DataLoader(ParquetIterable(url).shuffle(200, seed=7).batch(50), batch_size=None)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 3, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
server.stop()
