"""Bridges to systems that others maintain; each is optional."""
