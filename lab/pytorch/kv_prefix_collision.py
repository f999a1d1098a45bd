# none: PyTorch has no prefix cache: they belong to servers, and there the collision needs a hash that
# leaves something out. The one of transformers, in its continuous batching, serves one model, and its
# hash of 64 bits is of all tokens from the beginning, so that no two short texts share one by chance.
