raise RuntimeError("not the traceback that you mean")
