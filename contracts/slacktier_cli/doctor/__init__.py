# SPDX-License-Identifier: Apache-2.0
"""What a machine has and lacks: `probe` looks, `checks` judges. Only `probe` touches the machine."""
