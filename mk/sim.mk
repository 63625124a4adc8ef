# SPDX-License-Identifier: Apache-2.0
.PHONY: test-sim
test-sim: setup ## The C core on a virtual kernel with seeded faults, ten million rows; SLACKTIER_SIM_SEED=N replays
	@$(MAKE) -s -C $(NATIVE) sim
	$(PYTEST) tests/sim
