# SPDX-License-Identifier: Apache-2.0
# The header of libibverbs decides whether the RDMA client is compiled, and with it whether its test program tests it.
.PHONY: verbs-header
verbs-header:
	@mk/system-packages.sh infiniband/verbs.h=libibverbs-dev

test-native test-native-asan test-native-tsan: verbs-header
