"""The fabric's checks, one module a subject. Importing this package registers them all.

Sources: `users F1` to `F27` are the pains of owners of two to eight Sparks, collected from public issues and forum
threads; the issue that tells it best stands beside the number.
"""

from . import addresses, both_ends, libnccl, node, rails, rdma

__all__ = ["addresses", "both_ends", "libnccl", "node", "rails", "rdma"]
