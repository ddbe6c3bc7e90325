"""F2, plugins: who is there, what each may answer, and the one typed face through which the proxy asks.

Here live discovery (entry-point group `soloflight`), what is refused at registration, and the façade. No
plugin is known by name here, none has a privilege, and no manager is global: each composition root builds
its own.

    registry     entry points -> checked plugins in a pluggy manager
    contract     what a hook implementation must look like, and the line that says why one is refused
    facade       Plugins: the hooks as typed methods
"""

from soloflight.plugins.contract import HookInfo, PluginError, PluginFault, hooks
from soloflight.plugins.facade import Plugins
from soloflight.plugins.registry import PluginInfo

__all__ = ["HookInfo", "PluginError", "PluginFault", "PluginInfo", "Plugins", "hooks"]
