"""What SGLang needs to serve on a machine without an accelerator.

Nothing here is imported outside an engine process: :mod:`glm52_tbench2.engines.launch` puts
`path/` (which announces the plugin to SGLang) and the stand-ins on that process's path alone.
"""
