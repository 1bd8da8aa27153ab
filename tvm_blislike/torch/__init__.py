"""The backend "tvm_blislike" of `torch.compile`."""
