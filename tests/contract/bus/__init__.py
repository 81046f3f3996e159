"""The bus contract suite, applied; its checks are shipped in `pvbus.testing`."""

import pytest

pytest.register_assert_rewrite(
    "pvbus.testing.bus_contract",
    "pvbus.testing.bus_contract_churn",
    "pvbus.testing.bus_contract_groups",
    "pvbus.testing.bus_contract_worker",
)
