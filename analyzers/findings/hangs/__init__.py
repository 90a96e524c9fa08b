"""ESP8xx: hangs, deaths and slow steps caught in the act."""
