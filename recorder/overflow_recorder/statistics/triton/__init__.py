"""Figures of tensors on a CUDA or ROCm device, by Triton kernels."""
