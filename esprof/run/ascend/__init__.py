"""Traces of torch_npu on Ascend devices."""
