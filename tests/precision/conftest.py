"""The same claims on the CPU and, where there is one, on a GPU, whose kernels round otherwise."""

import pytest
import torch

from tests.support.factory import tiny_flux, tiny_pipeline

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU")


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=GPU)])
def device(request):
    return request.param


@pytest.fixture(scope="session")
def sd3(tmp_path_factory):
    return tiny_pipeline(tmp_path_factory.mktemp("sd3"), vae=False)


@pytest.fixture(scope="session")
def flux(tmp_path_factory):
    return tiny_flux(tmp_path_factory.mktemp("flux"), vae=False)
