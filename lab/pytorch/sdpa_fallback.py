# none: The filters of this page are those of a CUDA device. On a CPU PyTorch has flash and math alone,
# and its flash takes a mask tensor and any head size, so the same call is not refused there.
