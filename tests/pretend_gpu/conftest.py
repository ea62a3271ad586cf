"""Models and recipes that the tests of this folder share."""

from pathlib import Path

import pytest

from tests.support import pretend_flow, pretend_language


@pytest.fixture(scope="package")
def flow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretend_flow")
    pretend_flow.write_files(folder)
    return folder


@pytest.fixture(scope="package")
def language_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretend_language")
    pretend_language.write_files(folder)
    return folder
