"""`click_log_keras.py` with Hugging Face datasets."""

import zlib

import keras
import numpy as np
from datasets import load_dataset

clicks = load_dataset("parquet", data_files="clicks.parquet", split="train")


def in_part(users, parts):
    return [zlib.crc32(user.encode()) % 10 in parts for user in users]


train, valid = (
    clicks.filter(in_part, input_columns="user", batched=True, fn_kwargs={"parts": parts})
    for parts in (range(8), range(8, 10))
)
ages, prices = (np.array(train[name], float) for name in ("age", "price"))
cities = sorted({city for city in train["city"] if city is not None})
codes = {city: code for code, city in enumerate([*cities, None])}


def to_features(batch):
    age = (np.array(batch["age"], float) - ages.mean()) / ages.std()
    price = (np.array(batch["price"], float) - np.nanmean(prices)) / np.nanstd(prices)
    numbers = np.stack([age, np.nan_to_num(price)], 1).astype(np.float32)
    return {"numbers": numbers, "city": [codes.get(city, len(cities)) for city in batch["city"]]}


def features(part, shuffle=False):
    part = part.map(to_features, batched=True, remove_columns=["user", "age", "price"])
    dataset = part.to_tf_dataset(64, columns=["numbers", "city"], label_cols="clicked", shuffle=shuffle)
    return dataset.map(lambda inputs, label: ((inputs["numbers"], inputs["city"]), label))


numbers, city = keras.Input((2,)), keras.Input((), dtype="int64")
vectors = keras.layers.Embedding(len(cities) + 1, 8)(city)
hidden = keras.layers.Dense(32, "relu")(keras.layers.Concatenate()([numbers, vectors]))
model = keras.Model([numbers, city], keras.layers.Dense(1, "sigmoid")(hidden))
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(features(train, shuffle=True), epochs=3, verbose=2)
_, accuracy = model.evaluate(features(valid), verbose=0)
print(f"{accuracy:.0%} of the clicks of other users are right")
