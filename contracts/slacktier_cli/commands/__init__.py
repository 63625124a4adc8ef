# SPDX-License-Identifier: Apache-2.0
"""One module per subcommand; each exports `command`, a function with typer annotations."""
