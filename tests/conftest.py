"""Set before torch or huggingface_hub is imported, here and in every rank that a test starts."""

import os

# No test may reach for the network, and a test that tries should fail at once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Ranks share few cores with the reference process; more threads than cores make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
