from __future__ import annotations

import pytest

from overflow_analyzer.diff.align.wrappers import strip_wrappers, wrapper_chains


@pytest.mark.parametrize(
    ("name", "stripped"),
    [
        ("", ""),
        ("encoder.block.0", "encoder.block.0"),
        ("module", ""),
        ("module.encoder", "encoder"),
        ("_orig_mod.module.encoder", "encoder"),
        ("module._orig_mod", ""),
        ("_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.fc", "layers.0.fc"),
        ("layers.1._checkpoint_wrapped_module.fc", "layers.1.fc"),
        ("_forward_module.fc", "fc"),
        ("submodule.fc", "submodule.fc"),
        ("modules.module_list.0", "modules.module_list.0"),
    ],
)
def test_wrappers_are_stripped_wherever_they_stand(name: str, stripped: str) -> None:
    assert strip_wrappers(name) == stripped


def test_a_wrapper_and_what_it_wraps_are_a_chain_outermost_first() -> None:
    chains = wrapper_chains(["module._orig_mod.fc", "", "module", "module._orig_mod"])
    assert chains == {"": ("", "module", "module._orig_mod"), "fc": ("module._orig_mod.fc",)}


def test_two_modules_that_only_look_alike_are_no_chain() -> None:
    # GIVEN a model that has a student "fc" and, in its own attribute "module", a teacher "fc"
    # WHEN the names are grouped, THEN the two are left as they are
    assert "fc" not in wrapper_chains(["fc", "module.fc"])


def test_a_chain_inside_a_model() -> None:
    names = ["layers.0", "layers.0._checkpoint_wrapped_module", "layers.0._checkpoint_wrapped_module.fc"]
    assert wrapper_chains(names)["layers.0"] == tuple(names[:2])
