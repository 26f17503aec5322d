"""The source texts that proofs replace exist in the hardware; `make proofs` runs the proofs."""

from __future__ import annotations

import pytest

from .__main__ import PROOFS
from .proving import Proof, replaced_in


@pytest.mark.parametrize("proof", PROOFS, ids=[proof.name for proof in PROOFS])
def test_what_a_proof_replaces_is_in_the_hardware(proof: Proof) -> None:
    for _, _, replaced, _ in proof.runs():
        replaced_in(proof.modules, replaced)
