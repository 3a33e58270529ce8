"""A click log in Keras: the same verbs as in PyTorch, and the dataset goes into `fit`."""

import keras

from parquetry import ParquetDataset, Pipeline

clicks = Pipeline("clicks.parquet")
train, valid = (clicks.hash_split("user", [0.8, 0.2], part) for part in (0, 1))
stats = train.fit("age", "price", "city")


def features(part):
    part = part.standardize("age", "price", stats=stats).nulls("fill", "price", value=0)
    part = part.encode("city", stats=stats, null="unknown").pack("numbers", ["age", "price"], "float32")
    return ParquetDataset(part).batch(64).as_tuple(("numbers", "city"), "clicked").prefetch(2)


numbers, city = keras.Input((2,)), keras.Input((), dtype="int64")
vectors = keras.layers.Embedding(len(stats["city"].values) + 1, 8)(city)
hidden = keras.layers.Dense(32, "relu")(keras.layers.Concatenate()([numbers, vectors]))
model = keras.Model([numbers, city], keras.layers.Dense(1, "sigmoid")(hidden))
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
# The dataset shuffles, so Keras need not.
model.fit(features(train.shuffle(10_000, seed=7)), epochs=3, shuffle=False, verbose=2)
_, accuracy = model.evaluate(features(valid), verbose=0)
print(f"{accuracy:.0%} of the clicks of other users are right")
