def write_report(paths, out, title=""):
    return out
