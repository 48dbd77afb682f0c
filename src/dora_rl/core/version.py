"""The version of the package, where every layer may read it."""

VERSION = "0.1.0"
