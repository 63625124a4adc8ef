# SPDX-License-Identifier: Apache-2.0
"""The step path's Triton kernels, one file each; every check is in the wrappers. They also run in the interpreter."""
