"""A proxy before a real server that loses answers where it is told to.

``Proxy(port, POSTGRES)`` or ``Proxy(port, RESP)`` listens on loopback; see :mod:`tests.proxy.proxy`.
"""

from tests.proxy.proxy import AFTER, BEFORE, TORN, Proxy
from tests.proxy.wires import POSTGRES, RESP

__all__ = ["AFTER", "BEFORE", "POSTGRES", "RESP", "TORN", "Proxy"]
