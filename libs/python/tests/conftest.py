"""What several tests use."""

import pytest
from places import captures

pytest_plugins = ["pytester"]


@pytest.fixture(params=captures(), ids=lambda path: f"{path.parent.name}/{path.name}")
def capture_path(request):
    """Each capture file."""
    return request.param
