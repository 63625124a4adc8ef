# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured slowdown on the emulated engine: does the window rule hold where it was not fitted?"""
