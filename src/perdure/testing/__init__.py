"""For tests: of programs that use Perdure, and of stores that others write. Imports everything below it but pytest."""
