"""The sessiond command."""
