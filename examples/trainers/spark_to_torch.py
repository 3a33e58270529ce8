"""From a Spark data frame to a torch model: Spark writes Parquet once, and every epoch reads it in a new order."""

import tempfile

import torch
from pyspark.sql import SparkSession
from torch.utils.data import DataLoader

from parquetry.spark import spark_converter

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(1_000).selectExpr("cast(id / 1000 as float) x", "cast(3 * id / 1000 + 1 as float) y")
converter = spark_converter(frame, tempfile.mkdtemp())

loader = DataLoader(converter.torch_pipe().shuffle(200, seed=7).batch(50), batch_size=None)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(5):
    for batch in loader:
        loss = torch.nn.functional.mse_loss(model(batch["x"][:, None])[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
converter.delete()
spark.stop()
