"""EngineClient over a supervised child process. Asyncio thread only."""
