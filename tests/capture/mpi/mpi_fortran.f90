! A program in Fortran that calls MPI by the module `mpi`: what it receives is printed as a sum of bits.
program mpi_fortran
  use mpi
  implicit none
  integer, parameter :: n = 6
  integer :: rank, ranks, error, request, i, next, before
  integer :: status(MPI_STATUS_SIZE)
  real(8) :: x(n), y(n)
  real(8), allocatable :: all(:)
  logical :: flags(2), any(2)
  call MPI_INIT(error)
  call MPI_COMM_RANK(MPI_COMM_WORLD, rank, error)
  call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, error)
  allocate (all(n * ranks))
  next = mod(rank + 1, ranks)
  before = mod(rank + ranks - 1, ranks)
  x = [(dble(rank * 7 + i) / 3, i = 1, n)]
  call MPI_ALLREDUCE(x, y, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call MPI_ALLREDUCE(MPI_IN_PLACE, y, n, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
  call MPI_IALLREDUCE(x, y, n, MPI_DOUBLE_PRECISION, MPI_MIN, MPI_COMM_WORLD, request, error)
  call MPI_WAIT(request, MPI_STATUS_IGNORE, error)
  call MPI_ALLGATHER(x, n, MPI_DOUBLE_PRECISION, all, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  call MPI_SENDRECV(x, n, MPI_DOUBLE_PRECISION, next, 1, y, n, MPI_DOUBLE_PRECISION, before, 1, MPI_COMM_WORLD, status, error)
  flags = [rank == 0, rank == 1]
  call MPI_ALLREDUCE(flags, any, 2, MPI_LOGICAL, MPI_LOR, MPI_COMM_WORLD, error)
  call MPI_PCONTROL(2)
  call MPI_BCAST(y, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
  print '(A, I0, A, Z16.16, A, Z16.16, A, L1)', 'rank ', rank, ' ', transfer(sum(y), 0_8), ' ', transfer(sum(all), 0_8), ' ', any(2)
  call MPI_FINALIZE(error)
end program
