# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes operator: stages tables through tierd, decides each layer's tier, binds serving pods to replicas."""
